"""`python manage.py place_orders fred 10` sends ten tasks of the customer fred."""

from django.core.management.base import BaseCommand

from orders.tasks import charge


class Command(BaseCommand):
    """Send one task for each order."""

    def add_arguments(self, parser):
        """Take a customer and a number of orders."""
        parser.add_argument("customer")
        parser.add_argument("count", type=int)

    def handle(self, customer, count, **options):
        """Send them; workers charge them in their turn."""
        for number in range(count):
            charge.delay(number, customer=customer)
