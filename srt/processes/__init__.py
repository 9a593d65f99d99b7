"""The processes, their channels, the launcher and the client that talks to them."""
