//! JSON schemas of both documents, for editors (feature `schema`).
//!
//! In: the types' own schemas. Out: the same, with further facts of [`Kind`]: ranges, required fields, and that
//! every field may be left out. The committed copies are in `config/schema/`.

use crate::duration::Duration;
use crate::field::{Describe, Field, Kind};
use crate::kubelet::nested::FlushFrequency;
use crate::kubelet::{self, KubeletConfiguration};
use crate::node::{self, CredentialProvider, KubeletPatch, NodeConfig, Scalar, StaticPod};
use crate::quantity::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};
use std::borrow::Cow;

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A time span such as 30s, 1m30s or 100ms.",
            "type": "string",
            "pattern": "^[-+]?(0|([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$"
        })
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "An amount such as 100Mi, 500m or 2.",
            "type": ["string", "number"]
        })
    }
}

impl JsonSchema for StaticPod {
    fn schema_name() -> Cow<'static, str> {
        "StaticPod".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A Pod, or its name and its manifest as text or as a map.",
            "type": "object",
            "anyOf": [
                { "required": ["name", "manifest"] },
                { "required": ["apiVersion", "kind", "metadata"] }
            ]
        })
    }
}

impl JsonSchema for KubeletPatch {
    fn schema_name() -> Cow<'static, str> {
        "KubeletPatch".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<KubeletConfiguration>()
    }
}

impl JsonSchema for CredentialProvider {
    fn schema_name() -> Cow<'static, str> {
        "CredentialProvider".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A credential-provider plugin, as one of `providers` in CredentialProviderConfig v1.",
            "type": "object"
        })
    }
}

impl JsonSchema for Scalar {
    fn schema_name() -> Cow<'static, str> {
        "Scalar".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Text, or a number or boolean taken as text.",
            "type": ["string", "number", "boolean"]
        })
    }
}

impl JsonSchema for FlushFrequency {
    fn schema_name() -> Cow<'static, str> {
        "FlushFrequency".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A time span such as 5s, or nanoseconds.",
            "type": ["string", "integer"]
        })
    }
}

/// Schema of `kubelet.config.k8s.io/v1beta1` KubeletConfiguration.
#[must_use]
pub fn kubelet_configuration() -> Value {
    document::<KubeletConfiguration>(KubeletConfiguration::KIND, kubelet::API_VERSION, kubelet::KIND)
}

/// Schema of `orlop/v1alpha1` NodeConfig.
#[must_use]
pub fn node_config() -> Value {
    document::<NodeConfig>(NodeConfig::KIND, node::API_VERSION, node::KIND)
}

fn document<T: JsonSchema>(kind: &Kind, api_version: &str, name: &str) -> Value {
    let mut schema = schemars::schema_for!(T).to_value();
    let mut definitions = schema.get("$defs").cloned().unwrap_or_default();
    refine(&mut schema, kind, &mut definitions);
    if let Some(properties) = schema.get_mut("properties") {
        properties["apiVersion"]["const"] = json!(api_version);
        properties["kind"]["const"] = json!(name);
    }
    schema["required"] = json!(["apiVersion", "kind"]);
    schema["$defs"] = definitions;
    schema
}

/// Adds ranges and required fields to the schema of an object, and to those it refers to.
fn refine(schema: &mut Value, kind: &Kind, definitions: &mut Value) {
    match kind {
        Kind::Object(fields) => {
            if let Some(name) = reference(schema) {
                let mut target = std::mem::take(&mut definitions[&name]);
                refine_fields(&mut target, fields, definitions);
                definitions[&name] = target;
            } else {
                refine_fields(schema, fields, definitions);
            }
        }
        Kind::List(inner) => refine(&mut schema["items"], inner, definitions),
        Kind::Map(inner) => refine(&mut schema["additionalProperties"], inner, definitions),
        _ => {}
    }
}

/// Name of the definition a schema refers to, directly or as the other choice next to null.
fn reference(schema: &Value) -> Option<String> {
    let choices = schema.get("anyOf").and_then(Value::as_array);
    let direct = std::iter::once(schema).chain(choices.into_iter().flatten());
    direct
        .filter_map(|s| s.get("$ref").and_then(Value::as_str))
        .find_map(|r| r.strip_prefix("#/$defs/").map(str::to_owned))
}

fn refine_fields(schema: &mut Value, fields: &[Field], definitions: &mut Value) {
    let required: Vec<&str> = fields.iter().filter(|f| f.required).map(|f| f.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    for field in fields {
        let Some(property) = schema.get_mut("properties").and_then(|p| p.get_mut(field.name)) else {
            continue;
        };
        refine(property, field.kind, definitions);
        if let (Kind::Int(low, high), Some((min, max))) = (field.kind, field.range) {
            if min > i64::MIN {
                // Zero means "not set" to some fields.
                let min = if field.zero_is_unset && min > 0 { 0 } else { min };
                property["minimum"] = json!(min.max(*low));
            }
            if max < i64::MAX {
                property["maximum"] = json!(max.min(*high));
            }
        }
    }
}
