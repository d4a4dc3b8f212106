//! What init leaves for the guard of a trial boot: `/run/orlop/slot.json`.
//!
//! In: JSON. Out: typed fields, and back. Pure. A field of another version is passed over: the file lives as long as the boot.

use super::record::SlotName;
use serde_json::{Value, json};

/// The file.
pub const TRIAL_BOOT_FILE: &str = "/run/orlop/slot.json";

/// A boot on trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialBoot {
    /// The slot on trial, which runs.
    pub slot: SlotName,
    /// Identifier of the update.
    pub update: String,
    /// From the boot on, seconds.
    pub deadline_s: u32,
    /// Device of the boot record's partition, `/dev/vda6`.
    pub record: String,
    /// Device of the ESP; none if init did not find it.
    pub esp: Option<String>,
}

impl TrialBoot {
    /// Reads the file's text; none if it is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<TrialBoot> {
        let document: Value = serde_json::from_str(text).ok()?;
        let field = |name: &str| document.get(name).and_then(Value::as_str);
        Some(TrialBoot {
            slot: SlotName::parse(field("slot")?)?,
            update: field("update")?.to_owned(),
            deadline_s: u32::try_from(document.get("deadline")?.as_u64()?).ok()?,
            record: field("record")?.to_owned(),
            esp: field("esp").map(str::to_owned),
        })
    }

    /// The file's text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut document = json!({
            "slot": self.slot.letter(),
            "update": self.update,
            "deadline": self.deadline_s,
            "record": self.record,
        });
        if let Some(esp) = &self.esp {
            document["esp"] = json!(esp);
        }
        format!("{document}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_trial_boot_leads_back() {
        for esp in [None, Some("/dev/vda1".to_owned())] {
            let (update, record) = ("0.2.0-7".to_owned(), "/dev/vda6".to_owned());
            let boot = TrialBoot { slot: SlotName::B, update, deadline_s: 600, record, esp };
            assert_eq!(TrialBoot::parse(&boot.render()), Some(boot));
        }
        for bad in
            ["", "{}", r#"{"slot":"c","update":"","deadline":1,"record":""}"#, r#"{"slot":"a","deadline":1}"#]
        {
            assert_eq!(TrialBoot::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text(text in "\\PC{0,80}") {
            let _ = TrialBoot::parse(&text);
        }
    }
}
