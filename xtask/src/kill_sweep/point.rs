//! Kill points: which there are, and their names.

use anyhow::{Context, Result, bail};

use super::scenario;
use super::tracer::Moment;

/// Where somebody is killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Point {
    /// What the manager is doing.
    pub(super) phase: String,
    /// The number of its counted call, from 1.
    pub(super) number: usize,
    /// On which side of the call.
    pub(super) moment: Moment,
    /// Who is killed instead of the manager.
    pub(super) other: Option<String>,
}

impl Point {
    /// The points of a phase in which the manager makes `calls` counted calls: all before calls, then all after calls.
    pub(super) fn of_phase(phase: &'static str, calls: usize) -> Result<Vec<Self>> {
        let mut points = Vec::new();
        let others = scenario::of_phase(phase)?.others;
        for other in std::iter::once(None).chain(others.iter().copied().map(Some)) {
            for moment in [Moment::Before, Moment::After] {
                points.extend((1..=calls).map(|number| Self {
                    phase: phase.into(),
                    number,
                    moment,
                    other: other.map(Into::into),
                }));
            }
        }
        Ok(points)
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.phase, self.number)?;
        if self.moment == Moment::After {
            write!(f, ":after")?;
        }
        self.other.as_ref().map_or(Ok(()), |other| write!(f, ":{other}"))
    }
}

impl std::str::FromStr for Point {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let (Some(phase), Some(number)) = (parts.next(), parts.next()) else { bail!("{text:?} is not PHASE:N") };
        let others = scenario::of_phase(phase)?.others;
        let number = number.parse().with_context(|| format!("{number:?} is no number"))?;
        let mut point = Self { phase: phase.into(), number, moment: Moment::Before, other: None };
        for part in parts {
            match part {
                "before" => point.moment = Moment::Before,
                "after" => point.moment = Moment::After,
                other if others.contains(&other) => point.other = Some(other.into()),
                other => bail!("{other:?} is neither a side of a call nor somebody to kill"),
            }
        }
        Ok(point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_names() {
        let points = Point::of_phase("update", 2).unwrap();
        let names: Vec<_> = points.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["update:1", "update:2", "update:1:after", "update:2:after"]);
        for (point, name) in points.iter().zip(names) {
            assert_eq!(*point, name.parse().unwrap());
        }
        for wrong in ["update", "update:x", "never:1", "update:1:later"] {
            wrong.parse::<Point>().unwrap_err();
        }
    }
}
