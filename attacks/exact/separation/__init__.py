"""Records of a batch, told from each other by what a first linear layer sends of them."""
