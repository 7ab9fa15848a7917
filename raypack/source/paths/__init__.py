"""Where sources lie: paths and URIs, listings, folders that are made whole or not at all."""
