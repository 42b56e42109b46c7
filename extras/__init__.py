"""Programs that use the endpoint and that no deployment needs; nothing imports them."""
