//! Kubernetes quantities (`100m`, `1.5Gi`, `2e3`), exactly: never as floating point.

use std::fmt;

/// A quantity as Kubernetes keeps it: a whole number of billionths, at most 2^63-1 in size, rounded away from zero.
///
/// # Source
/// `k8s.io/apimachinery/pkg/api/resource/quantity.go` of Kubernetes v1.36.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quantity {
    nano: i128,
}

/// A text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no quantity (such as 100m, 1.5Gi or 2e3)")]
pub struct QuantityError {
    /// The text, cut to its first 64 characters.
    pub text: String,
}

const NANO: i128 = 1_000_000_000;
const MAX: i128 = i64::MAX as i128 * NANO;

impl Quantity {
    /// A whole number.
    pub fn new(value: i64) -> Self {
        Self { nano: i128::from(value) * NANO }
    }

    /// Reads a quantity. Too large ones become the largest (2^63-1), too precise ones are rounded away from zero, as
    /// Kubernetes does.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text).map(|nano| Self { nano }).ok_or_else(|| QuantityError { text: text.chars().take(64).collect() })
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    /// The sum, at most the largest quantity.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self { nano: (self.nano + other.nano).clamp(-MAX, MAX) }
    }

    /// The whole number, rounded up; none if it is negative.
    pub fn to_u64(self) -> Option<u64> {
        u64::try_from(self.ceil_div(Self::new(1))?).ok().filter(|_| self.nano >= 0)
    }

    /// How often `divisor` goes into it, rounded up. None if the divisor is zero.
    pub fn ceil_div(self, divisor: Self) -> Option<i128> {
        let quotient = self.nano.checked_div(divisor.nano)?;
        let exact = self.nano % divisor.nano == 0;
        Some(if !exact && (self.nano > 0) == (divisor.nano > 0) { quotient + 1 } else { quotient })
    }
}

/// The whole number, rounded up.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ceil_div(Self::new(1)).expect("one is not zero"))
    }
}

/// What a suffix multiplies with: 1024^binary * 10^decimal.
struct Scale {
    binary: usize,
    decimal: i64,
}

fn scale(suffix: &str) -> Option<Scale> {
    let decimal = |decimal| Some(Scale { binary: 0, decimal });
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => Some(Scale { binary: 1, decimal: 0 }),
        "Mi" => Some(Scale { binary: 2, decimal: 0 }),
        "Gi" => Some(Scale { binary: 3, decimal: 0 }),
        "Ti" => Some(Scale { binary: 4, decimal: 0 }),
        "Pi" => Some(Scale { binary: 5, decimal: 0 }),
        "Ei" => Some(Scale { binary: 6, decimal: 0 }),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            decimal(exponent.parse::<i64>().ok()?)
        }
    }
}

/// Billionths, by arithmetic on decimal digits of any number.
fn parse(text: &str) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let scale = scale(suffix)?;

    // Most significant digit first; the value is these digits times 10^exponent billionths.
    let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
    for _ in 0..scale.binary {
        multiply_by_1024(&mut digits);
    }
    let first = digits.iter().position(|d| *d != 0);
    let digits = &digits[first.unwrap_or(digits.len())..];
    if digits.is_empty() {
        return Some(0);
    }
    let exponent = 9_i64.saturating_add(scale.decimal).saturating_sub(i64::try_from(fraction.len()).ok()?);
    let length = i64::try_from(digits.len()).ok()?.saturating_add(exponent);

    let nano = if length > 30 {
        MAX // 2^63 has 19 digits, and 9 more for the billionths
    } else {
        let kept = usize::try_from(length).unwrap_or(0).min(digits.len());
        let value = digits[..kept].iter().fold(0_i128, |value, digit| value * 10 + i128::from(*digit));
        let zeros = u32::try_from(exponent.max(0)).expect("at most 30");
        let up = i128::from(digits[kept..].iter().any(|d| *d != 0));
        (value * 10_i128.pow(zeros) + up).min(MAX)
    };
    Some(if negative { -nano } else { nano })
}

fn multiply_by_1024(digits: &mut Vec<u8>) {
    let mut carry = 0_u32;
    for digit in digits.iter_mut().rev() {
        let product = u32::from(*digit) * 1024 + carry;
        *digit = (product % 10) as u8;
        carry = product / 10;
    }
    while carry > 0 {
        digits.insert(0, (carry % 10) as u8);
        carry /= 10;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nano(text: &str) -> i128 {
        Quantity::parse(text).unwrap().nano
    }

    #[test]
    fn golden_values() {
        for (text, value) in [
            ("0", 0),
            ("1", NANO),
            ("+1", NANO),
            ("-1", -NANO),
            ("1.", NANO),
            (".5", NANO / 2),
            ("00012.50", 12 * NANO + NANO / 2),
            ("1n", 1),
            ("1u", 1_000),
            ("100m", 100_000_000),
            ("1k", 1_000 * NANO),
            ("1M", 1_000_000 * NANO),
            ("1G", NANO * NANO),
            ("1T", 1_000 * NANO * NANO),
            ("1P", 1_000_000 * NANO * NANO),
            ("1E", NANO * NANO * NANO),
            ("1Ki", 1024 * NANO),
            ("1Mi", (1 << 20) * NANO),
            ("1Gi", (1 << 30) * NANO),
            ("1Ti", (1 << 40) * NANO),
            ("1Pi", (1 << 50) * NANO),
            ("1Ei", (1 << 60) * NANO),
            ("1.5Gi", (3 << 29) * NANO),
            ("0.1Ki", 1024 * NANO / 10),
            ("1e3", 1_000 * NANO),
            ("1E3", 1_000 * NANO),
            ("1e+3", 1_000 * NANO),
            ("12e-3", 12_000_000),
            ("1.25e1", 12 * NANO + NANO / 2),
            ("0e999999", 0),
            // Too precise: up, away from zero.
            ("0.1n", 1),
            ("1.0000000001", NANO + 1),
            ("-0.1n", -1),
            ("1e-1000", 1),
            ("0.0000000001Ki", 103),
            // Too large: the largest.
            ("9223372036854775807", MAX),
            ("9223372036854775808", MAX),
            ("8Ei", MAX),
            ("1e30", MAX),
            ("1e999999999", MAX),
            ("-1e30", -MAX),
        ] {
            assert_eq!(nano(text), value, "{text}");
        }
        assert_eq!(nano(&format!("{}1", "0".repeat(1000))), NANO);
        assert_eq!(nano(&"9".repeat(1000)), MAX);
    }

    #[test]
    fn what_is_none() {
        for bad in [
            "",
            "-",
            "+",
            ".",
            "m",
            "1.2.3",
            "1 ",
            " 1",
            "1ki",
            "1K",
            "1mi",
            "1e",
            "1e1.5",
            "1e1k",
            "1Kim",
            "1i",
            "--1",
            "1,5",
            "0x10",
            "1e99999999999999999999",
            "٣",
            "NaN",
            "inf",
        ] {
            assert!(Quantity::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn division_rounds_up() {
        for (value, divisor, quotient) in [
            ("1", "1m", Some(1000)),
            ("1500m", "1", Some(2)),
            ("1m", "1", Some(1)),
            ("0", "1", Some(0)),
            ("1Gi", "1Mi", Some(1024)),
            ("1Gi", "1M", Some(1074)),
            ("1Gi", "1", Some(1 << 30)),
            ("-1500m", "1", Some(-1)),
            ("1", "0", None),
        ] {
            let q = |text| Quantity::parse(text).unwrap();
            assert_eq!(q(value).ceil_div(q(divisor)), quotient, "{value} / {divisor}");
        }
    }

    #[test]
    fn sums_and_whole_numbers() {
        let q = |text| Quantity::parse(text).unwrap();
        assert_eq!(q("500m").saturating_add(q("1")), q("1.5"));
        assert_eq!(q("7Ei").saturating_add(q("7Ei")), q("8Ei"));
        assert_eq!(q("-7Ei").saturating_add(q("-7Ei")), q("-8Ei"));
        for (text, number) in
            [("0", Some(0)), ("1n", Some(1)), ("1.5Gi", Some(3 << 29)), ("8Ei", Some(i64::MAX as u64)), ("-1n", None)]
        {
            assert_eq!(q(text).to_u64(), number, "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn digits_are_never_lost(whole in 0_i64..i64::MAX / 2, milli in 0_u32..1000) {
            let text = format!("{whole}.{milli:03}");
            prop_assert_eq!(nano(&text), i128::from(whole) * NANO + i128::from(milli) * 1_000_000);
        }

        #[test]
        fn an_exponent_moves_the_point(whole in 0_u32..1_000_000, exponent in -9_i32..9) {
            let expected = i128::from(whole) * 10_i128.pow(u32::try_from(exponent + 9).unwrap());
            prop_assert_eq!(nano(&format!("{whole}e{exponent}")), expected);
        }
    }
}
