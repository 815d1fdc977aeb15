"""Pictures of results, and the pages that carry them."""
