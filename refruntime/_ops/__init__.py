"""The operators, one record each; `opdef` holds the record and the registry."""
