//! Durations on the command line, as Go and Kubernetes write them: `30s`, `10m`, `1h30m`, `0`.

use std::time::Duration;

/// Reads a duration.
///
/// # Source
/// `time.ParseDuration` of Go, without signs and fractions of nanoseconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 30s, 10m or 1h30m");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut all = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let unit_end = rest[number..].find(|c: char| c.is_ascii_digit() || c == '.').map_or(rest.len(), |n| number + n);
        let seconds = match &rest[number..unit_end] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let count: f64 = rest[..number].parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(count * seconds).map_err(|_| wrong())?;
        all = all.checked_add(part).ok_or_else(wrong)?;
        rest = &rest[unit_end..];
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::time::Duration;

    #[test]
    fn durations_are_read() {
        for (text, seconds) in
            [("0", 0.0), ("0s", 0.0), ("30s", 30.0), ("10m", 600.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("250ms", 0.25)]
        {
            assert_eq!(parse(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "10", "m", "10x", "-1s", "1s2", "1e9h", "99999999999999999999h", "1..2s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
