//! A kind of team.

use congruent_device::team_tag;

team_tag! {
    /// The teams of the suite.
    pub Crew
}
