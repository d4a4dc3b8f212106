//! Temperatures, fans, voltages: thermal zones and hardware monitors of /sys/class.
//!
//! Names of chips, sensors and families are made as node_exporter makes them: `temp1_input` of the chip `coretemp.0` of the bus
//! `platform` is `node_hwmon_temp_celsius{chip="platform_coretemp_0",sensor="temp1"}`. Linux: Documentation/hwmon/sysfs-interface.rst.

use std::collections::BTreeMap;

use super::{KernelFiles, NodeFacts, file_number, flag, is_name, number};
use crate::stats::exposition::{Exposition, Kind};

const THERMAL: &str = "sys/class/thermal";
const HWMON: &str = "sys/class/hwmon";
/// Zones, cooling devices and chips that are shown, of each.
const SENSORS_MAX: usize = 64;
/// Files of all chips together that are read.
const FILES_MAX: usize = 512;
/// Kinds of sensors.
const TYPES: [&str; 14] = [
    "beep_enable",
    "cpu",
    "curr",
    "energy",
    "fan",
    "freq",
    "humidity",
    "in",
    "intrusion",
    "power",
    "pwm",
    "temp",
    "update_interval",
    "vrm",
];

pub(super) fn thermal_zone<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let names = files.names(THERMAL);
    let of_kind = |kind: &str| -> Vec<(String, String, String)> {
        let numbered =
            names.iter().filter_map(|name| Some((name, name.strip_prefix(kind)?))).take(SENSORS_MAX);
        let kind_of =
            |name: &str| files.text(&format!("{THERMAL}/{name}/type")).unwrap_or_default().trim().to_owned();
        numbered.map(|(name, number)| (name.clone(), number.to_owned(), kind_of(name))).collect()
    };
    let (devices, zones) = (of_kind("cooling_device"), of_kind("thermal_zone"));
    for (file, family, help) in [
        ("cur_state", "node_cooling_device_cur_state", "How much a device cools."),
        ("max_state", "node_cooling_device_max_state", "How much a device can cool."),
    ] {
        let samples = devices.iter().filter_map(|(name, number, kind)| {
            let value = file_number(files, &format!("{THERMAL}/{name}/{file}"))?;
            Some((vec![("name", number.as_str()), ("type", kind.as_str())], value))
        });
        out.family((family, Kind::Gauge, help), samples, None);
    }
    let samples: Vec<_> = zones
        .iter()
        .filter_map(|(name, number, kind)| {
            let thousandths = file_number(files, &format!("{THERMAL}/{name}/temp"))?;
            Some((vec![("type", kind.as_str()), ("zone", number.as_str())], thousandths / 1e3))
        })
        .collect();
    let has_data = !samples.is_empty();
    out.family(
        ("node_thermal_zone_temp", Kind::Gauge, "Temperature of a zone, degrees Celsius."),
        samples,
        None,
    );
    has_data
}

/// Values by chip and sensor.
type SensorValues<T> = BTreeMap<(String, String), T>;

/// What all chips say.
#[derive(Default)]
struct ChipFamilies {
    /// Names for people, by chip.
    chips: BTreeMap<String, String>,
    /// Labels of sensors.
    labels: SensorValues<String>,
    /// Values by the family's name.
    values: BTreeMap<String, SensorValues<f64>>,
}

pub(super) fn hwmon<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let mut all = ChipFamilies::default();
    let mut files_left = FILES_MAX;
    for (chip, dir) in chips(files) {
        let name = files.text(&format!("{dir}/name")).map(|name| clean(name.trim())).unwrap_or_default();
        if !name.is_empty() {
            all.chips.insert(chip.clone(), name);
        }
        for (sensor, elements) in sensors(files, &dir, &mut files_left) {
            all.take(&chip, &sensor, &elements);
        }
    }
    let has_data = !all.chips.is_empty() || !all.values.is_empty();
    all.write(out);
    has_data
}

/// Name and directory of each chip. Chips of one device have their own names behind the device's.
fn chips<F: KernelFiles>(files: &F) -> Vec<(String, String)> {
    let mut names = files.names(HWMON);
    names.truncate(SENSORS_MAX);
    let own = |dir: &str| files.text(&format!("{dir}/name")).unwrap_or_default().trim().to_owned();
    let chips: Vec<(String, String, String)> = names
        .iter()
        .filter_map(|name| {
            let dir = format!("{HWMON}/{name}");
            let base = chip_of_device(files, &dir).unwrap_or_else(|| clean(&own(&dir)));
            let base = if base.is_empty() { clean(name) } else { base };
            (!base.is_empty()).then(|| (base, own(&dir), name.clone()))
        })
        .collect();
    let unique = |(base, own, name): &(String, String, String)| {
        if chips.iter().filter(|chip| chip.0 == *base).count() < 2 {
            return base.clone();
        }
        let same_name = chips.iter().filter(|chip| chip.0 == *base && chip.1 == *own).count() > 1;
        let suffix = if same_name || clean(own).is_empty() { clean(name) } else { clean(own) };
        format!("{base}_{suffix}")
    };
    chips.iter().map(|chip| (unique(chip), format!("{HWMON}/{}", chip.2))).collect()
}

/// `platform_coretemp_0`: the device's bus and name.
fn chip_of_device<F: KernelFiles>(files: &F, dir: &str) -> Option<String> {
    let path = files.real_path(&format!("{dir}/device"))?;
    let mut parts = path.rsplit('/').map(clean);
    let (name, bus) = (parts.next()?, parts.next().unwrap_or_default());
    let full = if bus.is_empty() { name.clone() } else { format!("{bus}_{name}") };
    (!name.is_empty()).then_some(full)
}

/// Elements of each sensor of a chip, as their files have them. Old drivers have the files with the device.
fn sensors<F: KernelFiles>(
    files: &F,
    dir: &str,
    files_left: &mut usize,
) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut sensors: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for dir in [dir.to_owned(), format!("{dir}/device")] {
        for file in files.names(&dir) {
            let Some((kind, number, element)) = parts(&file).filter(|(kind, ..)| TYPES.contains(kind)) else {
                continue;
            };
            if *files_left == 0 {
                return sensors;
            }
            *files_left -= 1;
            if let Some(text) = files.text(&format!("{dir}/{file}")) {
                let sensor = sensors.entry(format!("{kind}{number}")).or_default();
                sensor.insert(element.to_owned(), text.trim_matches('\n').to_owned());
            }
        }
    }
    sensors
}

/// `temp1_input` is `temp`, 1, `input`; without a number it is 0 and the rest is the kind.
fn parts(file: &str) -> Option<(&str, u32, &str)> {
    let Some(digit) = file.find(|c: char| c.is_ascii_digit()) else { return Some((file, 0, "")) };
    let (kind, rest) = file.split_at(digit);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, rest) = rest.split_at(end);
    let element =
        if rest.is_empty() { "" } else { rest.strip_prefix('_').filter(|rest| !rest.is_empty())? };
    (!kind.is_empty()).then_some((kind, number.parse().ok()?, element))
}

/// In small letters; what cannot be in a metric's name is `_`, which does not stand at either end.
fn clean(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == ':' { c } else { '_' };
    name.to_lowercase().chars().map(plain).collect::<String>().trim_matches('_').to_owned()
}

impl ChipFamilies {
    /// Takes the elements of one sensor.
    fn take(&mut self, chip: &str, sensor: &str, elements: &BTreeMap<String, String>) {
        let kind = sensor.trim_end_matches(|c: char| c.is_ascii_digit());
        let label = elements.get("label");
        if let Some(label) = label {
            self.labels.insert((chip.to_owned(), sensor.to_owned()), label.clone());
        }
        for (element, text) in elements.iter().filter(|(element, _)| *element != "label") {
            let Some((name, factor)) = family(kind, element, elements.contains_key("")) else { continue };
            let mut sensor = sensor.to_owned();
            if kind == "freq" && element == "input" {
                // node_exporter names a clock by its label, and shows none without.
                let Some(label) = label else { continue };
                sensor = clean(label);
            }
            // Chips that beep say 1.
            let value = if kind == "beep_enable" { Some(flag(text == "1")) } else { number(text) };
            if let Some(value) = value {
                self.values.entry(name).or_default().insert((chip.to_owned(), sensor), value * factor);
            }
        }
    }

    fn write(&self, out: &mut Exposition) {
        let chips = self
            .chips
            .iter()
            .map(|(chip, name)| (vec![("chip", chip.as_str()), ("chip_name", name.as_str())], 1.0));
        let help = "Names of the hardware monitors for people; always 1.";
        out.family(("node_hwmon_chip_names", Kind::Gauge, help), chips, None);
        let labels = self.labels.iter().map(|((chip, sensor), label)| {
            let labels =
                vec![("chip", chip.as_str()), ("label", label.as_str()), ("sensor", sensor.as_str())];
            (labels, 1.0)
        });
        let help = "Labels of the sensors; always 1.";
        out.family(("node_hwmon_sensor_label", Kind::Gauge, help), labels, None);
        for (name, values) in &self.values {
            let kind = if name.ends_with("_total") { Kind::Counter } else { Kind::Gauge };
            let samples = values.iter().map(|((chip, sensor), value)| {
                (vec![("chip", chip.as_str()), ("sensor", sensor.as_str())], *value)
            });
            out.family((name, kind, "Hardware monitors, as their sensors say it."), samples, None);
        }
    }
}

/// Name of the family and the factor of its values; `None` if the element has none. `has_bare`: the sensor has a file without an
/// element.
fn family(kind: &str, element: &str, has_bare: bool) -> Option<(String, f64)> {
    match kind {
        "beep_enable" => return Some(("node_hwmon_beep_enabled".to_owned(), 1.0)),
        "vrm" => return Some(("node_hwmon_voltage_regulator_version".to_owned(), 1.0)),
        "update_interval" => return Some(("node_hwmon_update_interval_seconds".to_owned(), 1e-3)),
        _ => {}
    }
    let name = match element {
        "input" if !has_bare => format!("node_hwmon_{kind}"),
        "" => format!("node_hwmon_{kind}"),
        element => format!("node_hwmon_{kind}_{}", clean(element)),
    };
    let (unit, factor) = match (kind, element) {
        (_, "fault" | "alarm") => ("", 1.0),
        (_, "beep") => ("_enabled", 1.0),
        ("in" | "cpu", _) => ("_volts", 1e-3),
        ("temp", "type") => ("", 1.0),
        ("temp", _) => ("_celsius", 1e-3),
        ("curr", _) => ("_amps", 1e-3),
        ("energy", _) => ("_joule_total", 1e-6),
        ("power", "accuracy") | ("humidity", _) => ("", 1e-6),
        ("power", "average_interval" | "average_interval_min" | "average_interval_max") => ("_seconds", 1e-3),
        ("power", _) => ("_watt", 1e-6),
        ("fan", "input" | "min" | "max" | "target") => ("_rpm", 1.0),
        ("freq", "input") => ("_freq_mhz", 1e-6),
        _ => ("", 1.0),
    };
    is_name(&name).then(|| (name + unit, factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_chips_have_parts() {
        assert_eq!(parts("temp1_input"), Some(("temp", 1, "input")));
        assert_eq!(parts("pwm2_auto_point1_pwm"), Some(("pwm", 2, "auto_point1_pwm")));
        assert_eq!(parts("update_interval"), Some(("update_interval", 0, "")));
        assert_eq!(parts("fan3"), Some(("fan", 3, "")));
        for file in ["1_input", "temp1x", "temp1_", "temp99999999999_input"] {
            assert_eq!(parts(file), None, "{file}");
        }
    }

    #[test]
    fn families_have_their_units() {
        for (kind, element, name, factor) in [
            ("temp", "input", "node_hwmon_temp_celsius", 1e-3),
            ("temp", "crit", "node_hwmon_temp_crit_celsius", 1e-3),
            ("temp", "crit_alarm", "node_hwmon_temp_crit_alarm_celsius", 1e-3),
            ("temp", "type", "node_hwmon_temp_type", 1.0),
            ("fan", "input", "node_hwmon_fan_rpm", 1.0),
            ("fan", "alarm", "node_hwmon_fan_alarm", 1.0),
            ("fan", "beep", "node_hwmon_fan_beep_enabled", 1.0),
            ("fan", "pulses", "node_hwmon_fan_pulses", 1.0),
            ("in", "min", "node_hwmon_in_min_volts", 1e-3),
            ("power", "average", "node_hwmon_power_average_watt", 1e-6),
            ("power", "accuracy", "node_hwmon_power_accuracy", 1e-6),
            ("power", "average_interval", "node_hwmon_power_average_interval_seconds", 1e-3),
            ("energy", "input", "node_hwmon_energy_joule_total", 1e-6),
            ("humidity", "input", "node_hwmon_humidity", 1e-6),
            ("curr", "max", "node_hwmon_curr_max_amps", 1e-3),
            ("freq", "input", "node_hwmon_freq_freq_mhz", 1e-6),
        ] {
            assert_eq!(family(kind, element, false), Some((name.to_owned(), factor)), "{kind} {element}");
        }
        let bare = family("fan", "input", true).unwrap();
        assert_eq!(bare.0, "node_hwmon_fan_input_rpm", "the bare file has the short name");
    }
}
