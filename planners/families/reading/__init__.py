"""What the families' readers share: typed access to a config, and the parts that more than one family is made of."""
