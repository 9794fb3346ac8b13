"""How well does it find? Collections of questions with known answers, and what is measured on them."""
