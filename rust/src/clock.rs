//! Exact time: instants and spans in whole attoseconds, or in a run's own unit.
//!
//! Time is a whole number of attoseconds (1e-18 s) in 128 bits. Addition of whole numbers is associative. So k
//! iterations advanced at once end at the same instant as k single iterations. Every exactness guarantee of the
//! project rests on this. Float seconds exist only at the border: an input means its shortest decimal, an output is
//! rounded once to the nearest double.
//!
//! A run counts time in its own unit: the greatest common divisor of all its times. The instants stay the same, the
//! numbers get smaller. While they fit 64 bits, the hottest code computes in 64 bits.

use std::cmp::Ordering;

use crate::error::{Error, Result};

/// Attoseconds in a second.
pub const SECOND: u128 = 1_000_000_000_000_000_000;
/// Attoseconds in a nanosecond, the grid of arrivals.
pub const NANOSECOND: u128 = 1_000_000_000;

/// A point in simulated time: attoseconds since the start of the run; inside a run, units of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u128);

/// A length of simulated time in attoseconds; inside a run, in units of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u128);

impl Instant {
    /// The start of every run.
    pub const ZERO: Instant = Instant(0);
    /// Later than every event.
    pub const NEVER: Instant = Instant(u128::MAX);

    /// The instant one span later.
    #[inline]
    pub fn after(self, span: Span) -> Result<Instant> {
        self.0.checked_add(span.0).map(Instant).ok_or_else(|| Error::overflow("the clock"))
    }

    /// The span since an earlier instant. The caller guarantees the order: the clock never goes back (invariant L3).
    #[inline]
    pub fn since(self, earlier: Instant) -> Span {
        debug_assert!(self >= earlier, "L3: the clock never goes back");
        Span(self.0 - earlier.0)
    }

    /// Seconds since the start of the run, rounded once to the nearest double.
    #[inline]
    pub fn seconds(self) -> f64 {
        seconds(self.0)
    }

    /// The same instant, truncated to the width `W`.
    pub(crate) fn within<W: Width>(self) -> Instant {
        Instant(W::of(self.0))
    }

    /// The sort key. With a 64-bit width this is the instant itself.
    pub(crate) fn sort_key_within<W: Width>(self) -> u64 {
        debug_assert!(!W::IS_SHORT || self.is_short(), "a time beyond the width switches the variant");
        if W::IS_SHORT { self.0 as u64 } else { self.sort_key() }
    }

    /// Whether this instant is earlier than `other`.
    pub(crate) fn is_before<W: Width>(self, other: Instant) -> bool {
        if W::IS_SHORT { (self.0 as u64) < other.0 as u64 } else { self < other }
    }

    /// Compares an instant of any length with one that fits the width.
    pub(crate) fn cmp_within<W: Width>(self, other: Instant) -> Ordering {
        match (self.0 >> 64) as u64 {
            0 if W::IS_SHORT => (self.0 as u64).cmp(&(other.0 as u64)),
            _ if W::IS_SHORT && other != Instant::NEVER => Ordering::Greater,
            _ => self.cmp(&other),
        }
    }

    /// Whether both instants are the same.
    pub(crate) fn is<W: Width>(self, other: Instant) -> bool {
        if W::IS_SHORT { self.0 as u64 == other.0 as u64 } else { self == other }
    }

    /// Whether it fits 64 bits or is `NEVER`.
    #[inline]
    pub(crate) fn is_short(self) -> bool {
        is_short(self.0) || self == Instant::NEVER
    }

    /// Whether it is `NEVER`.
    pub(crate) fn is_never<W: Width>(self) -> bool {
        // No other time has the highest of the 128 bits set.
        if W::IS_SHORT { self.0 as u64 == u64::MAX } else { self.0 >> 127 != 0 }
    }

    /// A 64-bit key that sorts instants. It is the instant itself below 2^63, and less precise above. A later instant
    /// never has a lower key, and the key of `NEVER` is higher than all others.
    #[inline]
    pub(crate) fn sort_key(self) -> u64 {
        // Instants from 2^63 to 2^96 keep their bits from bit 33 on.
        match self.0 >> 63 {
            0 => self.0 as u64,
            late if late >> 33 == 0 => 1 << 63 | (self.0 >> 33) as u64,
            _ if self == Instant::NEVER => u64::MAX,
            _ => Self::LAST_SORT_KEY,
        }
    }

    /// The sort key of an event, which is never at `NEVER`.
    #[inline]
    pub(crate) fn sort_key_of_event(self) -> u64 {
        debug_assert!(self < Instant::NEVER, "no event is at NEVER");
        self.sort_key()
    }

    /// The key of all instants below `NEVER` that are too late for a key of their own.
    pub(crate) const LAST_SORT_KEY: u64 = u64::MAX - 1;

    /// The instant `nanoseconds` after the start of the run.
    #[inline]
    pub fn from_nanoseconds(nanoseconds: u64) -> Instant {
        Instant(u128::from(nanoseconds) * NANOSECOND)
    }
}

impl Span {
    /// An empty span.
    pub const ZERO: Span = Span(0);
    /// Longer than every duration.
    pub const NEVER: Span = Span(u128::MAX);

    /// The sum of two spans.
    #[inline]
    pub(crate) fn plus(self, other: Span) -> Result<Span> {
        self.0.checked_add(other.0).map(Span).ok_or_else(|| Error::overflow("a span of time"))
    }

    /// This span, `count` times.
    #[inline]
    pub(crate) fn times(self, count: u128) -> Result<Span> {
        product(self.0, count).map(Span)
    }

    /// Seconds, rounded once to the nearest double.
    #[inline]
    pub fn seconds(self) -> f64 {
        seconds(self.0)
    }

    /// The same span, truncated to the width `W`.
    pub(crate) fn within<W: Width>(self) -> Span {
        Span(W::of(self.0))
    }
}

/// The number of bits that the code computes times in.
pub(crate) trait Width {
    /// Whether 64 bits hold every time.
    const IS_SHORT: bool;

    /// The time, truncated to this width.
    fn of(time: u128) -> u128 {
        debug_assert!(!Self::IS_SHORT || is_short(time), "a time beyond the width switches the variant");
        if Self::IS_SHORT { u128::from(time as u64) } else { time }
    }
}

/// 64 bits: every time fits.
#[derive(Debug)]
pub(crate) enum Short {}

/// 128 bits: times of any length.
#[derive(Debug)]
pub(crate) enum Long {}

impl Width for Short {
    const IS_SHORT: bool = true;
}

impl Width for Long {
    const IS_SHORT: bool = false;
}

/// Whether 64 bits hold this time and its sum with another such time.
pub(crate) fn is_short(time: u128) -> bool {
    time >> 62 == 0
}

/// The time unit of a run: a whole number of attoseconds that divides every time of the run, and a nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit(u64);

impl Default for Unit {
    fn default() -> Unit {
        Unit::ATTOSECOND
    }
}

impl Unit {
    /// One attosecond, which divides every time.
    pub(crate) const ATTOSECOND: Unit = Unit(1);

    /// The largest unit for times with this greatest common divisor in attoseconds. 0: all times are 0.
    pub(crate) fn of(divisor: u128) -> Unit {
        // At most a nanosecond, because arrivals are on that grid.
        Unit(greatest_common_divisor(divisor, NANOSECOND) as u64)
    }

    /// Attoseconds per unit.
    pub(crate) fn attoseconds_each(self) -> u128 {
        u128::from(self.0)
    }

    /// Units per nanosecond.
    pub(crate) fn nanosecond(self) -> u64 {
        NANOSECOND as u64 / self.0
    }

    /// A time in attoseconds, converted to units and rounded down.
    pub(crate) fn count(self, attoseconds: u128) -> u128 {
        if self == Unit::ATTOSECOND { attoseconds } else { attoseconds / u128::from(self.0) }
    }

    /// An instant in attoseconds, converted to units; `NEVER` stays `NEVER`.
    pub(crate) fn count_until(self, at: Instant) -> Instant {
        if at == Instant::NEVER { at } else { Instant(self.count(at.0)) }
    }

    /// Units, or units times requests, converted to attoseconds.
    pub(crate) fn attoseconds(self, units: u128) -> Result<u128> {
        product(units, u128::from(self.0))
    }

    /// A span in units that fits 64 bits, in attoseconds.
    pub(crate) fn short(self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.0)
    }

    /// A span in units, in attoseconds.
    pub(crate) fn span<W: Width>(self, span: Span) -> Result<Span> {
        match self {
            _ if W::IS_SHORT => Ok(Span(self.short(W::of(span.0) as u64))),
            Unit::ATTOSECOND => Ok(span),
            Unit(_) => self.attoseconds(span.0).map(Span),
        }
    }

    /// An instant in units, in attoseconds; `NEVER` if it does not fit.
    pub(crate) fn instant(self, at: Instant) -> Instant {
        Instant(at.0.saturating_mul(u128::from(self.0)))
    }
}

/// The greatest common divisor of two numbers; with 0 it is the other number.
pub(crate) fn greatest_common_divisor(mut left: u128, mut right: u128) -> u128 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}

/// The product of two whole numbers. Overflow is an error.
#[inline]
pub(crate) fn product(left: u128, right: u128) -> Result<u128> {
    // In practice both factors fit 64 bits: one multiplication, no overflow.
    if (left | right) >> 64 == 0 {
        return Ok(u128::from(left as u64) * u128::from(right as u64));
    }
    left.checked_mul(right).ok_or_else(|| Error::overflow("a product of times"))
}

/// Attoseconds as seconds: the double nearest to the exact quotient.
#[inline]
pub fn seconds(attoseconds: u128) -> f64 {
    if attoseconds < 1 << 53 {
        // Both numbers are exact doubles (1e18 = 2^18 · 5^18), so one division rounds once.
        return attoseconds as f64 / 1e18;
    }
    // The product of the 64 leading bits of the number and of 2^123 / 10^18, each rounded down, holds the quotient's
    // leading bits. It is too low by less than 8 units of its 64th bit. This matters only just below a tie of the
    // 53rd bit.
    const RECIPROCAL: u64 = ((1_u128 << 123) / SECOND) as u64;
    let (high, low) = ((attoseconds >> 64) as u64, attoseconds as u64);
    let (leading, shift) = if high == 0 {
        let shift = low.leading_zeros();
        (low << shift, 64 + shift)
    } else {
        let shift = high.leading_zeros();
        ((high << shift) | (low >> 1 >> (63 - shift)), shift)
    };
    // Both factors have their top bit set, so the top bit of the product is bit 127 or 126.
    let wide = ((u128::from(leading) * u128::from(RECIPROCAL)) >> 64) as u64;
    let normal = u32::from(wide >> 63 == 0);
    let bits = wide << normal;
    let rest = bits & 0x7FF;
    if !(0x3F8..=0x400).contains(&rest) {
        // The number is leading · 2^(64 − shift) and the reciprocal 2^−123. So the 64 bits count units of 2^(5 −
        // shift − normal), and the leading one of the 53 bits is 63 places higher. A carry out of the mantissa raises
        // the exponent.
        let exponent = u64::from(1023 + 63 + 5 - shift - normal);
        return f64::from_bits(((exponent - 1) << 52) + (bits >> 11) + u64::from(rest > 0x400));
    }
    seconds_at_a_tie(attoseconds)
}

/// The slow, exact form of [`seconds`]: 64 binary places by long division, and a sticky bit for the remainder.
fn seconds_at_a_tie(attoseconds: u128) -> f64 {
    let (whole, rest) = (attoseconds / SECOND, attoseconds % SECOND);
    if whole >> 63 != 0 {
        // More than 63 bits before the point: the fraction only breaks ties.
        return (whole | u128::from(rest > 0)) as f64;
    }
    let (places, beyond) = ((rest << 64) / SECOND, (rest << 64) % SECOND);
    // The sticky bit is below every significant bit, so the conversion's own rounding to even is right.
    ((whole << 64) | places | u128::from(beyond > 0)) as f64 / (1_u128 << 64) as f64
}

/// The attoseconds of a typed number of seconds: its shortest decimal, rounded to the nearest whole, half to even.
///
/// A non-zero number that rounds to 0 is an error, because it would silently disable a cost.
pub fn attoseconds(seconds: f64, field: &str) -> Result<u128> {
    if !seconds.is_finite() || seconds < 0.0 {
        return Err(Error::config(field, format!("must be a finite, non-negative number of seconds, got {seconds}")));
    }
    let whole =
        decimal(seconds, 18).ok_or_else(|| Error::config(field, format!("must fit the clock, got {seconds} s")))?;
    if whole == 0 && seconds > 0.0 {
        return Err(Error::config(
            field,
            format!("must be 0 or at least 1e-18 s, the unit of the clock, got {seconds} s"),
        ));
    }
    Ok(whole)
}

/// Arrival seconds, rounded to the nearest nanosecond of their shortest decimal, half to even. `None` if the time
/// does not fit.
#[inline]
pub fn arrival_nanoseconds(seconds: f64) -> Option<u64> {
    if !(0.0..9e9).contains(&seconds) {
        return None;
    }
    let scaled = seconds * 1e9;
    let whole = scaled as u64;
    let fraction = scaled - whole as f64;
    // The product is off by less than two units in the last place. This matters only near a tie.
    if (fraction - 0.5).abs() > scaled * 1e-15 {
        return Some(whole + u64::from(fraction > 0.5));
    }
    // Below 2^52, whole nanoseconds are wider apart than doubles, so no two of them share a double. If the nearest
    // nanosecond is this double, it is the shortest decimal: a shorter one would be a whole nanosecond too.
    let nearest = whole + u64::from(fraction > 0.5);
    if scaled < WHOLE && nearest as f64 / 1e9 == seconds {
        return Some(nearest);
    }
    decimal(seconds, 9).map(|whole| whole as u64)
}

/// Converts many checked arrivals to nanoseconds.
pub(crate) fn all_arrival_nanoseconds(seconds: &[f64], nanoseconds: &mut [u64]) {
    let mut are_exact = true;
    for (nanoseconds, &seconds) in nanoseconds.iter_mut().zip(seconds) {
        let (shifted, is_exact) = nanoseconds_above_whole(seconds);
        are_exact &= is_exact;
        *nanoseconds = shifted.to_bits().wrapping_sub(WHOLE.to_bits());
    }
    if !are_exact {
        for (nanoseconds, &seconds) in nanoseconds.iter_mut().zip(seconds) {
            if !nanoseconds_above_whole(seconds).1 {
                *nanoseconds = arrival_nanoseconds(seconds).unwrap_or(0);
            }
        }
    }
}

/// Arrivals in nanoseconds as exact doubles; `None` if any of them is not below 2^52.
pub(crate) fn arrival_nanoseconds_as_doubles(seconds: &[f64]) -> Option<Vec<f64>> {
    let nearest = |&seconds: &f64| nanoseconds_above_whole(seconds);
    let mut nanoseconds: Vec<f64> = seconds.iter().map(|arrival| nearest(arrival).0 - WHOLE).collect();
    if !seconds.iter().fold(true, |all, arrival| all & nearest(arrival).1) {
        for (nanoseconds, seconds) in nanoseconds.iter_mut().zip(seconds) {
            if !nearest(seconds).1 {
                *nanoseconds = arrival_nanoseconds(*seconds).unwrap_or(0) as f64;
            }
        }
    }
    nanoseconds.iter().fold(true, |all, &arrival| all & (arrival < WHOLE)).then_some(nanoseconds)
}

/// Adding 2^52 to a smaller number leaves the nearest whole number in its last bits.
const WHOLE: f64 = (1_u64 << 52) as f64;

/// The nearest nanosecond above [`WHOLE`], and whether it is certain.
fn nanoseconds_above_whole(seconds: f64) -> (f64, bool) {
    let scaled = seconds * 1e9;
    let shifted = scaled + WHOLE;
    let rest = scaled - (shifted - WHOLE);
    // The rounding of the product matters only near a tie.
    (shifted, (scaled < WHOLE) & ((rest.abs() - 0.5).abs() > scaled * 1e-15))
}

/// The shortest decimal of a non-negative number times 10^places, rounded to the nearest whole, half to even.
pub(crate) fn decimal(number: f64, places: i32) -> Option<u128> {
    // Two decimals of at most 15 digits are never the same double. So a decimal of at most 15 digits whose quotient
    // equals the number is its shortest decimal.
    let billionths = (number * 1e9 + 0.5) as u64;
    if places == 18 && (1..1_000_000_000_000_000).contains(&billionths) && billionths as f64 / 1e9 == number {
        return Some(u128::from(billionths) * NANOSECOND);
    }
    decimal_of_text(number, places)
}

/// Computes [`decimal`] from the text of the shortest decimal.
fn decimal_of_text(number: f64, places: i32) -> Option<u128> {
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    let fraction = mantissa.len().saturating_sub(2) as i32;
    let digits: u128 = mantissa.replace('.', "").parse().ok()?;
    let power = exponent - fraction + places;
    if power >= 0 {
        return 10_u128.checked_pow(power as u32)?.checked_mul(digits);
    }
    let Some(divisor) = 10_u128.checked_pow(power.unsigned_abs()) else {
        return Some(0);
    };
    let (whole, rest) = (digits / divisor, digits % divisor);
    let up = rest * 2 > divisor || (rest * 2 == divisor && whole % 2 == 1);
    Some(whole + u128::from(up))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_later_instant_never_has_a_lower_sort_key(first: u128, other: u128, shift in 0_u32..128, near in 0_u128..1 << 32) {
            let first = Instant(first >> shift);
            for other in [Instant(other >> shift), Instant(first.0.saturating_add(near))] {
                let (earlier, later) = (first.min(other), first.max(other));
                prop_assert!(earlier.sort_key() <= later.sort_key());
                prop_assert_eq!(later.sort_key() == u64::MAX, later == Instant::NEVER);
            }
        }
    }

    #[test]
    fn a_typed_number_means_its_shortest_decimal() {
        let read = |seconds| attoseconds(seconds, "x").expect("a span");
        assert_eq!(read(0.0455), 45_500_000_000_000_000);
        assert_eq!(read(0.1) + read(0.2), read(0.3));
        assert_eq!(read(650e-12), 650_000_000);
        assert_eq!(read(1e9), 1_000_000_000 * SECOND);
        // Half to even on the last attosecond.
        assert_eq!(read(2.5e-18), 2);
        assert_eq!(read(3.5e-18), 4);
    }

    #[test]
    fn a_span_that_would_vanish_or_make_no_sense_is_an_error() {
        for bad in [1e-19, f64::NAN, f64::INFINITY, -1.0, 1e300] {
            assert!(attoseconds(bad, "timing.base").is_err(), "{bad}");
        }
        assert_eq!(attoseconds(0.0, "x").expect("zero is a span"), 0);
    }

    proptest! {
        #[test]
        fn many_arrivals_are_what_each_is(
            seconds in prop::collection::vec(prop_oneof![
                4 => (0_u64..1 << 43).prop_map(|nanoseconds| Instant::from_nanoseconds(nanoseconds).seconds()),
                1 => (0_u64..1 << 43).prop_map(|halves| halves as f64 / 2e9),
                1 => 0.0..1e4_f64,
                1 => 0.0..9e9_f64,
            ], 1..5),
        ) {
            let mut all = vec![0; seconds.len()];
            all_arrival_nanoseconds(&seconds, &mut all);
            let each: Vec<u64> = seconds.iter().filter_map(|&seconds| arrival_nanoseconds(seconds)).collect();
            if let Some(doubles) = arrival_nanoseconds_as_doubles(&seconds) {
                prop_assert_eq!(doubles, each.iter().map(|&nanoseconds| nanoseconds as f64).collect::<Vec<f64>>());
            }
            prop_assert_eq!(all, each);
        }
    }

    proptest! {
        #[test]
        fn late_arrivals_are_the_nearest_nanosecond_of_their_text(
            nanoseconds in (0_u64..1 << 53, 0_u32..12).prop_map(|(all, shift)| all >> shift),
            away in -3_i64..4,
        ) {
            let seconds = f64::from_bits((nanoseconds as f64 / 1e9).to_bits().saturating_add_signed(away));
            if let Some(nearest) = arrival_nanoseconds(seconds) {
                prop_assert_eq!(Some(u128::from(nearest)), decimal_of_text(seconds, 9));
            }
        }
    }

    #[test]
    fn arrivals_at_a_tie_go_to_the_even_nanosecond() {
        assert_eq!(arrival_nanoseconds(0.5e-9), Some(0));
        assert_eq!(arrival_nanoseconds(1.5e-9), Some(2));
        assert_eq!(arrival_nanoseconds(3.0000000005), Some(3_000_000_000));
        assert_eq!(arrival_nanoseconds(3.0000000015), Some(3_000_000_002));
        assert_eq!(arrival_nanoseconds(-1.0), None);
        assert_eq!(arrival_nanoseconds(f64::NAN), None);
    }

    proptest! {
        #[test]
        fn seconds_are_the_nearest_double(high in 0_u64..1 << 40, low: u64, shift in 0_u32..64) {
            let whole = (u128::from(high) << 64 | u128::from(low)) >> shift;
            // Rust's parser rounds decimal text correctly.
            let text = format!("{}.{:018}", whole / SECOND, whole % SECOND);
            prop_assert_eq!(seconds(whole), text.parse::<f64>().expect("a decimal"));
            prop_assert_eq!(seconds_at_a_tie(whole.max(1 << 60)), seconds(whole.max(1 << 60)));
        }

        #[test]
        fn a_nanosecond_survives_the_way_through_a_double(nanoseconds in 0_u64..1 << 52) {
            let seconds = Instant::from_nanoseconds(nanoseconds).seconds();
            prop_assert_eq!(arrival_nanoseconds(seconds), Some(nanoseconds));
        }
    }
}
