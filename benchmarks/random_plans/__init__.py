"""Plans drawn at random from all that the search may choose, their traces stored, and the planner held against them."""
