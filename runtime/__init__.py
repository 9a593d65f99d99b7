"""radix-runtime: serve large language models with a KV cache that is one radix tree."""
