//! CRI client over the unix socket.
#![forbid(unsafe_code)]
