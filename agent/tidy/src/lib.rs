//! Tests over the tree: file sizes, headers, dependency directions.
#![forbid(unsafe_code)]
