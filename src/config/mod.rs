//! What is stored about a volume and what a client was told.
