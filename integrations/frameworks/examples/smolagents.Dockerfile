FROM host
COPY packages /home/user/packages
ENV PYTHONPATH=/home/user/packages
