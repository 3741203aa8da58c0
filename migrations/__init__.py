"""The steps by which a database comes to the tables of this version, and back."""
