//! Objects in a store: the seam, the stores, and the layers around them.
