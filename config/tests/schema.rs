//! The committed JSON schemas are those of the types. `ORLOP_UPDATE_SCHEMA=1 cargo test -p orlop-config --test schema`
//! writes them again.

use serde_json::Value;
use std::{env, fs};

fn compare(name: &str, schema: &Value) {
    // As it is now, not as it was compiled: checkouts that share a target directory share this binary.
    let package = env::var("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let path = format!("{package}/schema/{name}");
    let mut text = serde_json::to_string_pretty(schema).expect("JSON");
    text.push('\n');
    if env::var_os("ORLOP_UPDATE_SCHEMA").is_some() {
        fs::write(&path, &text).unwrap_or_else(|e| panic!("write {path}: {e}"));
    }
    let committed = fs::read_to_string(&path).unwrap_or_else(|e| panic!("read {path}: {e}"));
    assert!(
        committed == text,
        "{path} is not what the types say: run ORLOP_UPDATE_SCHEMA=1 cargo test -p orlop-config --test schema"
    );
}

#[test]
fn kubelet_configuration() {
    compare("kubelet-configuration.json", &orlop_config::schema::kubelet_configuration());
}

#[test]
fn node_config() {
    compare("node-config.json", &orlop_config::schema::node_config());
}

#[test]
fn the_schema_knows_ranges_words_and_required_fields() {
    let schema = orlop_config::schema::kubelet_configuration();
    let property = |name: &str| &schema["properties"][name];
    assert_eq!(property("port")["maximum"], 65535);
    assert_eq!(property("port")["minimum"], 0, "zero is \"not set\"");
    assert_eq!(property("oomScoreAdj")["minimum"], -1000);
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["$defs"]["Taint"]["required"], serde_json::json!(["key", "effect"]));
    assert_eq!(schema["properties"]["kind"]["const"], "KubeletConfiguration");
    assert_eq!(schema["required"], serde_json::json!(["apiVersion", "kind"]));
    let words = serde_json::to_string(&schema["$defs"]["HairpinMode"]).expect("JSON");
    assert!(words.contains("hairpin-veth"), "{words}");
}
