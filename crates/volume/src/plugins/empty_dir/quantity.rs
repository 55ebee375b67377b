//! Kubernetes quantities, as far as a number of bytes needs them.

/// The bytes that a quantity (`1Gi`, `500M`, `1e3`, `0.5Ki`, `100m`) means, rounded up; none if it is no quantity, is
/// negative or does not fit.
///
/// # Source
/// `k8s.io/apimachinery/pkg/api/resource/quantity.go`: a decimal number, then one suffix, binary (`Ki` … `Ei`), decimal
/// (`n`, `u`, `m`, `k`, `M` … `E`) or an exponent.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = i32::try_from(fraction.len()).ok()?;
    let (binary, decimal) = match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        _ => (0, suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?),
    };
    if digits == 0 {
        return Some(0);
    }
    let value = digits.checked_mul(1 << binary)?;
    let power = decimal.checked_sub(scale)?;
    let ten = |n: u32| 10_u128.checked_pow(n);
    let value = if power >= 0 {
        value.checked_mul(ten(power.unsigned_abs())?)?
    } else {
        // A divisor that does not fit is larger than any value that does.
        ten(power.unsigned_abs()).map_or(1, |divisor| value.div_ceil(divisor))
    };
    u64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn quantities_mean_what_they_mean_to_kubernetes() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("1024", Some(1024)),
            ("+5", Some(5)),
            ("1Ki", Some(1024)),
            ("64Mi", Some(64 << 20)),
            ("1.5Gi", Some(3 << 29)),
            (".5Ki", Some(512)),
            ("1k", Some(1000)),
            ("2M", Some(2_000_000)),
            ("1e3", Some(1000)),
            ("1E3", Some(1000)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("100m", Some(1)),
            ("1500m", Some(2)),
            ("1e-40", Some(1)),
            ("7Ei", Some(7 << 60)),
            ("16Ei", None),
            ("1e40", None),
            ("", None),
            (".", None),
            ("-1", None),
            ("1.2.3", None),
            ("1KiB", None),
            ("1 Ki", None),
            ("Ki", None),
            ("e3", None),
        ] {
            assert_eq!(parse(text), bytes, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[0-9.+-]{0,45}[a-zA-Z0-9-]{0,6}") {
            let _ = parse(&text);
        }
    }
}
