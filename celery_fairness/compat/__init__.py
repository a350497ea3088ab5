"""What older versions of Celery, kombu and redis-py lack, in the form of the newest.

No other room looks at a version. ``celery_app`` adapts Celery, ``redis_transport`` kombu, and
``redis_pool`` and ``redis_redirects`` redis-py.

=========================================================  ============
The package uses, and makes here before                    ends with
=========================================================  ============
A mark of the messages that follow a task                  Celery 5.7
Whether a setting is given, before its first read          Celery 5.7
The setting ``task_repr_maxlevels``                        Celery 5.7
Batches of publishes (before, nobody begins one)           kombu 5.7
Queues with ``x-expires`` on Redis                         kombu 5.7
Looks for connections without an answer                    kombu 5.7
Timers whose errors of a lost connection are quiet         kombu 5.7
The order of consumed queues                               kombu 5.7
The longest BRPOP as an attribute                          kombu 5.6
A connection of a pool without the name of a command       redis-py 5.3
Classes of errors for the redirections of a cluster        redis-py 6.0
=========================================================  ============
"""
