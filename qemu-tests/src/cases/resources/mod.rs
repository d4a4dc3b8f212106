//! Processors, memory and devices that containers have for themselves.

pub mod numa;
pub mod processors;
