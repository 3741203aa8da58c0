"""What a scheme makes of a tensor, and makes of it again."""
