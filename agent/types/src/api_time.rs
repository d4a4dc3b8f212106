//! Core's wall clock and the API's timestamps.
//!
//! In: [`Wall`] or the API's `Time`. Out: the other one, or text for people. Invariant: total; the API keeps
//! whole seconds, so a time is cut to whole seconds before a comparison with the API's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::time::Wall;

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// The instant, exactly.
#[must_use]
pub fn timestamp(wall: Wall) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(wall.0)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The instant as the API keeps it: whole seconds.
#[must_use]
pub fn api_time(wall: Wall) -> Time {
    Time(timestamp(Wall(wall.0 - wall.0.rem_euclid(NANOS_PER_SECOND))))
}

/// The instant of an API time, limited to the range of [`Wall`].
#[must_use]
pub fn wall(time: &Time) -> Wall {
    let nanos = time.0.as_nanosecond().clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Wall(i64::try_from(nanos).unwrap_or_default())
}

/// `2026-11-21T12:00:00Z`, for messages.
#[must_use]
pub fn text(wall: Wall) -> String {
    api_time(wall).0.to_string()
}

#[cfg(test)]
mod tests {
    use crate::api_time::*;

    #[test]
    fn there_and_back() {
        let at = Wall(1_795_262_400_500_000_000);
        assert_eq!(text(at), "2026-11-21T12:00:00Z");
        assert_eq!(wall(&api_time(at)), Wall(1_795_262_400_000_000_000));
        assert_eq!(wall(&api_time(Wall(-1))), Wall(-NANOS_PER_SECOND));
        for end in [i64::MIN + NANOS_PER_SECOND, i64::MAX] {
            assert_eq!(wall(&Time(timestamp(Wall(end)))), Wall(end));
        }
    }
}
