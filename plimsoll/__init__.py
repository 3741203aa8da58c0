"""What other programs import of Plimsoll: `plimsoll.client`."""
