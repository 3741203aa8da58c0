"""The PostgreSQL that the service starts itself where none is named."""
