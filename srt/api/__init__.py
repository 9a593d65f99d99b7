"""HTTP: native and OpenAI-compatible routes, typed at the edge."""
