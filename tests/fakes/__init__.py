"""Stand-ins for services, clusters and engines, told by a test what to do."""
