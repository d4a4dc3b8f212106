//! The text form of a [`Contract`]: one fact a line, tab-separated, sorted, so that a change is a readable diff.
//!
//! `message NAME [NUMBER FIELD TYPE]`, `enum NAME NUMBER VALUE`, `rpc SERVICE METHOD REQUEST RESPONSE`; a message
//! without fields has a line of its own. Lines starting with `#` are comments.

use std::fmt::Write as _;

use super::{Contract, ContractError, Field, Method};

impl Contract {
    /// The text form, without comments.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        for (name, fields) in &self.messages {
            if fields.is_empty() {
                let _ = writeln!(out, "message\t{name}");
            }
            for (number, field) in fields {
                let _ = writeln!(out, "message\t{name}\t{number}\t{}\t{}", field.name, field.kind);
            }
        }
        for (name, values) in &self.enums {
            for (number, value) in values {
                let _ = writeln!(out, "enum\t{name}\t{number}\t{value}");
            }
        }
        for (name, methods) in &self.services {
            for (method, types) in methods {
                let _ = writeln!(out, "rpc\t{name}\t{method}\t{}\t{}", types.input, types.output);
            }
        }
        out
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// [`ContractError::Table`] with the line that is not understood.
    pub fn from_table(text: &str) -> Result<Contract, ContractError> {
        let mut contract = Contract::default();
        for (index, text) in text.lines().enumerate() {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let fail = |expected| ContractError::Table { line: index + 1, text: text.to_owned(), expected };
            let number = |s: &str| s.parse::<i32>().map_err(|_| fail("a number in column 3"));
            match text.split('\t').collect::<Vec<_>>()[..] {
                ["message", name] => {
                    contract.messages.entry(name.to_owned()).or_default();
                }
                ["message", name, n, field, kind] => {
                    let field = Field { name: field.to_owned(), kind: kind.to_owned() };
                    contract.messages.entry(name.to_owned()).or_default().insert(number(n)?, field);
                }
                ["enum", name, n, value] => {
                    contract.enums.entry(name.to_owned()).or_default().insert(number(n)?, value.to_owned());
                }
                ["rpc", service, method, input, output] => {
                    let types = Method { input: input.to_owned(), output: output.to_owned() };
                    contract.services.entry(service.to_owned()).or_default().insert(method.to_owned(), types);
                }
                _ => return Err(fail("message, enum or rpc with tab-separated columns")),
            }
        }
        Ok(contract)
    }
}
