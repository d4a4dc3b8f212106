//! Made-up plugins and pods for tests.
