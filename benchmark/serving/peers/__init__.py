"""How each contestant starts; a file each. benchmark/peers.md says how to install the peers."""
