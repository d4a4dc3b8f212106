//! Linux as the agent needs it: inotify, clocks, sd_notify, host channel.
#![forbid(unsafe_code)]
