//! PID 1 of the initrd and its second stage.
#![forbid(unsafe_code)]
