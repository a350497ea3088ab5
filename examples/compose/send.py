"""Fred sends 100 tasks, and Petra five after him."""

from shop import work

for customer, count in (("fred", 100), ("petra", 5)):
    for number in range(count):
        work.delay(number, customer=customer)
