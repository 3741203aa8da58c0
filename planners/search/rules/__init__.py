"""Which layouts can exist: one record a rule, with its predicate, its words and the field at fault."""
