"""Model ports written on the facade, and loading, generating and decoding with them."""
