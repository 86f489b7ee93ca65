"""From the results of games to ratings of players: Elo with intervals, and TrueSkill."""
