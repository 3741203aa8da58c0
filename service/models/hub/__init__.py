"""Model configurations from a hub's mirror: fetched, checked, remembered."""
