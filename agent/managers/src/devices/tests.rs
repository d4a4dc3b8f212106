//! Courses.
