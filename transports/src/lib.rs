//! Moves bytes to peers that loads and stores cannot reach.
