//! Reading what the API server says.
//!
//! One function, because each kind of a deserializer's input is a copy of the code that reads every type of the API:
//! a megabyte for the second one.

use serde::Deserialize;

/// The object that a body or a line is; what is text already is given to `serde_json::from_str` by itself.
///
/// # Errors
/// What is wrong with it, and where.
pub(crate) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    let text =
        std::str::from_utf8(body).map_err(|e| format!("it is not UTF-8 from byte {}", e.valid_up_to()))?;
    serde_json::from_str(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    #[test]
    fn what_is_wrong_is_said() {
        let error = |body: &[u8]| super::read::<Pod>(body).unwrap_err();
        assert_eq!(error(b"{\"a\": \xff}"), "it is not UTF-8 from byte 6");
        assert!(error(b"{\"spec\": 3}").starts_with("invalid type: integer `3`"));
        assert!(super::read::<Pod>(b"{}").is_ok());
    }
}
