//! Gradwire.
