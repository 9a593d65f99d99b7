"""JSON Schema to a grammar that accepts exactly the instances of the schema, or a refusal."""
