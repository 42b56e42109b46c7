"""Optional programs around the endpoint; nothing imports them."""
