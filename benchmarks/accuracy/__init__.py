"""How far the planners are from what was measured, over every public row that can be asked about."""
