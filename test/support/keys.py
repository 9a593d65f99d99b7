"""The keys of the server that the end-to-end tests start with keys."""

API_KEY = "sk-ordinary-1f0e"
ADMIN_API_KEY = "sk-admin-77aa"
